package config

import (
	"path/filepath"
)

// AdminSocket is the path of the socket on which a process with this state directory answers its operator (package
// adminapi).
func AdminSocket(state string) string { return filepath.Join(state, "admin.sock") }
