//go:build !linux

package bench

import (
	"errors"
	"time"

	"github.com/spf13/cobra"
)

func monotonic() time.Duration { return 0 }

// standstillCommand says that it cannot tell.
func standstillCommand(Env) *cobra.Command {
	return &cobra.Command{Use: "standstills", Hidden: true, RunE: func(*cobra.Command, []string) error {
		return errors.New("when the machine stands still is found out on Linux only")
	}}
}
