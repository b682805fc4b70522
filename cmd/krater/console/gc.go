package console

// ServingGCPercent keeps a server's heap close to its live size. The weights are not on the heap. The
// rest (stored answers, buffers) would double before the default collects, and collecting twice as
// often costs almost nothing here.
const ServingGCPercent = 50
