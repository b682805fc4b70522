// Package tokenizer turns text into token ids and back, from a Hugging Face tokenizer.json or a
// tiktoken.model (Kimi K2). It follows the semantics of the Rust tokenizers crate, or of OpenAI's
// tiktoken: the ids are equal, not similar.
//
// The life of a text in Encode:
//
//  1. bytes that are not UTF-8 become U+FFFD, one a maximal subpart (utf8.go);
//  2. added tokens are cut out of the raw text, longest first (added.go);
//  3. what lies between is normalised (normalize.go, nfc.go), and the added
//     tokens that are looked for in normalised text are cut out;
//  4. the pre-tokenizers split the rest into pieces (pretokenize.go; the
//     patterns of known families are written by hand in split_*.go);
//  5. byte pair encoding turns each piece into ids (bpe.go, merge.go);
//  6. the post-processor adds BOS and EOS (post.go).
//
// Decode and Stream are the same chain of decoder stages (decode.go), so what a stream delivers is
// always what Decode returns.
//
// Unicode 16 decides what is a letter or a digit, and Unicode 9 decides normalisation, as in the
// reference. A pattern without a hand-written splitter uses the Unicode of package unicode, and is
// the only part of Encode with a time limit (finder.go). Added tokens are never recognised in
// untrusted text: see EncodeOptions.
//
// Supported are BPE models, byte-level and with byte fallback. Whatever else a file asks for is
// refused by name when it is loaded.
package tokenizer
