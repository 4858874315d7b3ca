package cluster

// Version of the build; the linker sets it.
var Version = "dev"
