package gguf

// fileTypes are the names of general.file_type, llama.cpp's llama_ftype. Numbers of types that are no longer written are left
// out.
var fileTypes = map[int64]string{
	0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L",
	14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS",
	23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16",
	36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4_MOE",
}

// Quantisation names what most of the file is stored as: its general.file_type, or else the type with the most bytes.
func (f *File) Quantisation() string {
	if n, err := f.Int("general.file_type"); err == nil && fileTypes[n] != "" {
		return fileTypes[n]
	}
	bytes := map[Type]int{}
	most := Type(0)
	for _, name := range f.names {
		t := f.tensors[name]
		bytes[t.Type] += len(t.Data)
		if bytes[t.Type] > bytes[most] {
			most = t.Type
		}
	}
	return most.String()
}
