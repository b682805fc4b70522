package tokenizer

// Byte-level vocabularies spell each byte as one printable character (GPT-2's bytes_to_unicode):
// the printable ones of Latin-1 represent themselves, and the other 68 bytes are the characters
// from U+0100 on.

// byteChar[b] is the character that spells byte b; charByte is its inverse, -1 for characters that
// spell none.
var byteChar, charByte = func() (chars [256]rune, bytes [0x144]int16) {
	for i := range bytes {
		bytes[i] = -1
	}
	next := rune(0x100)
	for b := range chars {
		switch {
		case b >= '!' && b <= '~', b >= 0xA1 && b <= 0xAC, b >= 0xAE:
			chars[b] = rune(b)
		default:
			chars[b] = next
			next++
		}
		bytes[chars[b]] = int16(b)
	}
	return chars, bytes
}()

// appendSpelled appends the bytes that text spells to dst. If text has a character that spells no
// byte, dst is returned as it was, and false.
func appendSpelled(dst []byte, text string) ([]byte, bool) {
	n := len(dst)
	for _, r := range text {
		if int(r) >= len(charByte) || charByte[r] < 0 {
			return dst[:n], false
		}
		dst = append(dst, byte(charByte[r]))
	}
	return dst, true
}
