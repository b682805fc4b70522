package cards

import "krater/kernels/cuda/launch"

// The kernels of src/ceiling.cu.
var (
	kRead      = launch.Named("kr_ceiling_read")
	kProducts  = launch.Named("kr_ceiling_products")
	kProductsH = launch.Named("kr_ceiling_products_h")
)
