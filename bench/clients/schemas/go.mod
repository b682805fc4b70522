module krater/bench/clients/schemas

go 1.27.3

require (
	github.com/santhosh-tekuri/jsonschema/v6 v6.0.3
	krater v0.0.0
)

require golang.org/x/text v0.44.0 // indirect

replace krater => ../../..
