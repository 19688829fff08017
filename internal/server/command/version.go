package command

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/server/cli"
	"github.com/packhorse-git/packhorse/internal/server/statedir"
	"github.com/packhorse-git/packhorse/internal/store"
	"github.com/spf13/cobra"
)

// Version is the output of "packhorse version --json".
type Version struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"` // commit of the source, if the build recorded it
	Go       string `json:"go"`
	OS       string `json:"os"`
	Arch     string `json:"arch"`

	// Formats that this version writes. It reads them and all earlier ones.
	StateFormat int `json:"state_format"`
	StoreFormat int `json:"store_format"`
}

func versionOf(env Env) Version {
	return Version{
		Version: cmp.Or(env.Version, cli.Version), Revision: cli.Revision(env.Revision),
		Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH,
		StateFormat: statedir.Format, StoreFormat: store.Format,
	}
}

// line is the version for people, as "packhorse 0.1.0 (b730bdf0c1d2, go1.26.8, linux/amd64, state format 1, store
// format 1)".
func (v Version) line() string {
	about := []string{v.Go, v.OS + "/" + v.Arch, fmt.Sprintf("state format %d, store format %d", v.StateFormat,
		v.StoreFormat)}
	if v.Revision != "" {
		about = slices.Insert(about, 0, v.Revision)
	}
	return fmt.Sprintf("packhorse %s (%s)", v.Version, strings.Join(about, ", "))
}

func versionCommand(env Env) *cobra.Command {
	var asJSON *bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Example: `  packhorse version
  packhorse version --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := versionOf(env)
			return printLine(cmd, *asJSON, v, "%s", v.line())
		},
	}
	asJSON = jsonFlag(cmd)
	return cmd
}
