package config

import (
	"fmt"
)

// Role is what a process is.
type Role string

const (
	RoleServe   Role = "serve"   // gateway and node in one
	RoleStorage Role = "storage" // a node: owns repositories
	RoleGateway Role = "gateway" // owns listeners, and no repository
	RoleSearch  Role = "search"  // owns the index, for gateways
	RoleAny     Role = ""        // not said; for flags only
)

// flags tells which of configFlags are for the role.
func (r Role) flags() int {
	switch r {
	case RoleServe:
		return inServe
	case RoleStorage:
		return inStorage
	case RoleGateway:
		return inGateway
	case RoleSearch:
		return inSearch
	}
	return repositories | public
}

// FacesClients reports whether clients of git reach the role.
func (r Role) FacesClients() bool { return r.flags()&public != 0 }

// OwnsRepositories reports whether the role has repositories of its own.
func (r Role) OwnsRepositories() bool { return r.flags()&repositories != 0 }

// asksNodes reports whether the role asks storage nodes in other processes.
func (r Role) asksNodes() bool { return r.flags()&asking != 0 }

// Set, String and Type make a role a pflag.Value.
func (r *Role) Set(text string) error {
	switch is := Role(text); is {
	case RoleServe, RoleStorage, RoleGateway, RoleSearch:
		*r = is
		return nil
	}
	return fmt.Errorf("%q is no role; there are serve, storage, gateway and search", text)
}

func (r *Role) String() string { return string(*r) }

func (r *Role) Type() string { return "role" }

// LoadChecked reads the configuration and finds what the role could not run with.
func (s *Source) LoadChecked() (Config, error) {
	cfg, f := s.Inspect(true)
	return cfg, f.Err()
}

// Inspect reads the configuration and finds all that the role could not run with; with machine also what this machine lacks.
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
