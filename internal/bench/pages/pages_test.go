package pages

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/benchtest"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

func TestMain(m *testing.M) {
	benchtest.Main(m, func(env loadgen.Env) []*cobra.Command { return []*cobra.Command{Command(env)} })
}

func TestFlags(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"nothing":                              "invalid argument",
		"views --rounds 0":                     "--rounds",
		"crawler --networks 0":                 "--networks",
		"page --packhorse /missing/packhorse ": "/missing/packhorse",
	} {
		_, _, err := benchtest.Run(t, t.Context(), append([]string{"pages"}, strings.Fields(args)...)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("packhorse-bench pages %s = %v, want an error with %q", args, err, want)
		}
	}
}
