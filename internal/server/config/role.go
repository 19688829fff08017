package config

import (
	"fmt"
)

// Role is the role of a process.
type Role string

const (
	RoleServe   Role = "serve"   // gateway and node in one
	RoleStorage Role = "storage" // a storage node
	RoleGateway Role = "gateway" // listeners, without repositories
	RoleSearch  Role = "search"  // the index, for gateways
	RoleMirror  Role = "mirror"  // serve, with a root of its own for mirrors
	RoleAny     Role = ""        // unknown; for flags only
)

// flags returns the bits of the role in configFlags.
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
	case RoleMirror:
		return inMirror
	}
	return repositories | public
}

// FacesClients reports whether Git clients connect to the role.
func (r Role) FacesClients() bool { return r.flags()&public != 0 }

// OwnsRepositories reports whether the role has its own repositories.
func (r Role) OwnsRepositories() bool { return r.flags()&repositories != 0 }

// IsServe reports whether the role has a gateway and a node in one process.
func (r Role) IsServe() bool { return r == RoleServe || r == RoleMirror }

// asksNodes reports whether the role asks storage nodes in other processes.
func (r Role) asksNodes() bool { return r.flags()&asking != 0 }

// Set, String and Type make a role a pflag.Value.
func (r *Role) Set(text string) error {
	switch is := Role(text); is {
	case RoleServe, RoleStorage, RoleGateway, RoleSearch, RoleMirror:
		*r = is
		return nil
	}
	return fmt.Errorf("%q is not a role: use serve, mirror, storage, gateway or search", text)
}

func (r *Role) String() string { return string(*r) }

func (r *Role) Type() string { return "role" }
