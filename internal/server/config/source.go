package config

import (
	"github.com/spf13/pflag"
)

// Source is a file and flags from which a configuration is loaded. It can be loaded again.
type Source struct {
	Role    Role
	getenv  func(string) string // variables of the environment
	File    string
	flags   *pflag.FlagSet
	defined Role   // the role of the flags
	values  Config // of the flags
	noCache bool
	anyRoot bool // a missing root is not a mistake
	nodes   nodeFlags
	mirrors mirrorFlags
}

// FromFile returns a source without flags. A missing root is not a mistake, because --root can set it.
func FromFile(role Role, file string, getenv func(string) string) *Source {
	return &Source{Role: role, defined: role, getenv: getenv, File: file,
		flags: pflag.NewFlagSet("", pflag.ContinueOnError), values: DefaultConfig(), anyRoot: true}
}

// Origins are the origins of values by key: "default", "FILE:LINE" or "--FLAG".
type Origins map[string]string

// Load reads the configuration: defaults, then the file, then flags. The error joins every mistake in
// the file.
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
	if s.Role == RoleMirror {
		s.mirrors.addTo(&cfg, from, s.flags)
		cfg.setMirrorDefaults(from)
	}
	cfg.Complete(s.Role, s.getenv)
	return cfg, from, wrong
}

// LoadChecked reads the configuration. The error joins everything that prevents the role from running.
func (s *Source) LoadChecked() (Config, error) {
	cfg, f := s.Inspect(true)
	return cfg, f.Err()
}

// Inspect reads the configuration and finds all mistakes that prevent the role from running. With machine it also
// checks the files and programs of this machine.
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
