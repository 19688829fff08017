//go:build !linux

package gitload

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// EchoCommand always fails.
func EchoCommand(loadgen.Env) *cobra.Command {
	return &cobra.Command{Use: "echo", Hidden: true, RunE: func(*cobra.Command, []string) error {
		return errors.New("the bare echo is measured on Linux only")
	}}
}
