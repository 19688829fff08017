package config

import (
	"path/filepath"
)

// AdminSocket is where a gateway with this state directory answers its operator. Who may connect may administer: mode 0600.
//
//	GET  /nodes                  []nodeStatus
//	POST /nodes/{name}/drain     nodeStatus
//	POST /nodes/{name}/undrain   nodeStatus
//
// An error is {"error": "what was wrong"}.
func AdminSocket(state string) string { return filepath.Join(state, "admin.sock") }
