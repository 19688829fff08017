package config

import (
	"github.com/spf13/pflag"
)

// Source tells what the configuration is read from: a file, and flags over it. It can be read again.
type Source struct {
	Role    Role
	getenv  func(string) string // variables of the environment
	File    string
	flags   *pflag.FlagSet
	defined Role   // whose flags these are
	values  Config // where the flags are parsed to
	noCache bool
	anyRoot bool // a file without a root is fine: --root will name it
	nodes   nodeFlags
}

// FromFile is the source that is a file alone. A file without a root is fine: a flag will name it.
func FromFile(role Role, file string, getenv func(string) string) *Source {
	return &Source{Role: role, defined: role, getenv: getenv, File: file,
		flags: pflag.NewFlagSet("", pflag.ContinueOnError), values: DefaultConfig(), anyRoot: true}
}

// Origins tells for each key where its value came from: "default", "FILE:LINE" or "--FLAG".
type Origins map[string]string

// Load reads the configuration: defaults, then the file, then flags. The error has all that is wrong with the file, as
// mistakes.
func (s *Source) Load() (cfg Config, from Origins, wrong error) {
	cfg, from = DefaultConfig(), Origins{}
	for _, f := range Settings(&cfg) {
		from[f.Key] = "default"
	}
	if s.File != "" {
		wrong = LoadFile(s.File, &cfg, from)
	}
	given := map[string]Setting{}
	for _, f := range Settings(&s.values) {
		given[f.Key] = f
	}
	target := map[string]Setting{}
	for _, f := range Settings(&cfg) {
		target[f.Key] = f
	}
	for _, f := range configFlags {
		if f.roles&s.defined.flags() != 0 && s.flags.Changed(f.flag) {
			target[f.key].Value.Set(given[f.key].Value)
			from[f.key] = "--" + f.flag
		}
	}
	if s.noCache {
		cfg.Cache.Enabled = false
		from["cache.enabled"] = "--no-cache"
	}
	s.nodes.addTo(&cfg, from)
	cfg.Complete(s.Role, s.getenv)
	return cfg, from, wrong
}

// LoadChecked reads the configuration and finds what the role could not run with.
func (s *Source) LoadChecked() (Config, error) {
	cfg, f := s.Inspect(true)
	return cfg, f.Err()
}

// Inspect reads the configuration and finds all that the role could not run with; with machine also what this machine
// lacks.
func (s *Source) Inspect(machine bool) (Config, *Findings) {
	cfg, from, err := s.Load()
	f := &Findings{from: from}
	f.take(err)
	if f.Fatal() {
		return cfg, f
	}
	if s.anyRoot && cfg.Root == "" {
		cfg.Root = "."
	}
	f.take(cfg.checkRole(s.Role))
	cfg.checkValues(f)
	if machine && (cfg.Root != "" || !s.Role.OwnsRepositories()) {
		cfg.checkDisk(s.Role, f)
	}
	return cfg, f
}
