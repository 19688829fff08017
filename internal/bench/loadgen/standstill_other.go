//go:build !linux

package loadgen

import (
	"errors"
	"time"

	"github.com/spf13/cobra"
)

func Monotonic() time.Duration { return 0 }

// StandstillCommand always fails.
func StandstillCommand(Env) *cobra.Command {
	return &cobra.Command{Use: "standstills", Hidden: true, RunE: func(*cobra.Command, []string) error {
		return errors.New("standstills are measured on Linux only")
	}}
}
