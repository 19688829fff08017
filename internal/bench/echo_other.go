//go:build !linux

package bench

import (
	"errors"

	"github.com/spf13/cobra"
)

// echoCommand says that it cannot.
func echoCommand(Env) *cobra.Command {
	return &cobra.Command{Use: "echo", Hidden: true, RunE: func(*cobra.Command, []string) error {
		return errors.New("the bare echo is measured on Linux only")
	}}
}
