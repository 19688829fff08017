package roles

import (
	"fmt"

	"github.com/spf13/cobra"
)

// role is what a process is.
type role string

const (
	roleServe   role = "serve"   // gateway and node in one
	roleStorage role = "storage" // a node: owns repositories
	roleGateway role = "gateway" // owns listeners, and no repository
	roleSearch  role = "search"  // owns the index, for gateways
	roleAny     role = ""        // not said; for flags only
)

// flags tells which of configFlags are for the role.
func (r role) flags() int {
	switch r {
	case roleServe:
		return inServe
	case roleStorage:
		return inStorage
	case roleGateway:
		return inGateway
	case roleSearch:
		return inSearch
	}
	return repositories | public
}

// Set, String and Type make a role a pflag.Value.
func (r *role) Set(text string) error {
	switch is := role(text); is {
	case roleServe, roleStorage, roleGateway, roleSearch:
		*r = is
		return nil
	}
	return fmt.Errorf("%q is no role; there are serve, storage, gateway and search", text)
}

func (r *role) String() string { return string(*r) }
func (r *role) Type() string   { return "role" }

// roleCommand completes the command that runs a role.
func roleCommand(role role, env Env, cmd *cobra.Command) *cobra.Command {
	cmd.Use, cmd.Args = string(role), noArgs
	src := addConfigFlags(cmd.Flags(), role, env)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := src.loadChecked()
		if err != nil {
			return usage(err)
		}
		return run(cmd.Context(), src, cfg)
	}
	return cmd
}

// loadChecked reads the configuration and finds what the role could not run with.
func (s *source) loadChecked() (Config, error) {
	cfg, f := s.inspect(true)
	return cfg, f.err()
}

// inspect reads the configuration and finds all that the role could not run with; with machine also what this machine lacks.
func (s *source) inspect(machine bool) (Config, *findings) {
	cfg, from, err := s.load()
	f := &findings{from: from}
	f.take(err)
	if f.fatal() {
		return cfg, f
	}
	if s.anyRoot && cfg.Root == "" {
		cfg.Root = "."
	}
	f.take(cfg.checkRole(s.role))
	cfg.checkValues(f)
	if machine && (cfg.Root != "" || s.role.flags()&repositories == 0) {
		cfg.checkDisk(s.role, f)
	}
	return cfg, f
}
