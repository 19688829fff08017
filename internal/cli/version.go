package cli

// Version is the version of the programs that are built from this source.
const Version = "0.1.0"
