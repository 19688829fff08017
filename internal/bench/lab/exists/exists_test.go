package exists

import (
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/bench/benchtest"
)

func TestExistsRefuses(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"--rate 0":                               "--rate and --children",
		"--children -1":                          "--rate and --children",
		"--duration 0s":                          "positive",
		"http://127.0.0.1:1/x":                   "--rpc",
		"--rpc 127.0.0.1:1":                      "need a URL",
		"http://127.0.0.1:1/x --rpc 127.0.0.1:1": "connection refused",
	} {
		_, _, err := benchtest.Run(t, t.Context(), append([]string{"exists"}, strings.Fields(args)...)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", args, err, want)
		}
	}
}
