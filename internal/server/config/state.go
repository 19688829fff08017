package config

import (
	"path/filepath"
)

// AdminSocket returns the path of the admin socket of a process with a state directory (package adminapi).
func AdminSocket(state string) string { return filepath.Join(state, "admin.sock") }
