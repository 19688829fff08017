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
