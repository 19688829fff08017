package config

import (
	"path/filepath"
)

// AdminSocket returns the path of the admin socket of a process with a state directory (package adminapi).
func AdminSocket(state string) string { return filepath.Join(state, "admin.sock") }

// DumpDir returns the directory of the watchdog's dumps of a process with a state directory.
func DumpDir(state string) string { return filepath.Join(state, "dumps") }
