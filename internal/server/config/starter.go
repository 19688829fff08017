package config

import _ "embed"

// Starter is a configuration file to start from. It has the keys that most servers set, with comments. Keys that are
// commented out show their defaults.
//
//go:embed starter.toml
var Starter string
