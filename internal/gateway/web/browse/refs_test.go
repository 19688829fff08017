package browse

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestCompareVersions(t *testing.T) {
	t.Parallel()
	want := []string{"", "gui-0.9", "v1-rc", "v1", "v1.0-rc1", "v1.0-rc2", "v1.0-rc10", "v1.0", "v1.0+x", "v1.2", "v1.9",
		"v1.9.1", "v1.010", "v1.10", "v1.20", "v1.30000000000000000000000", "v2"}
	got := slices.Clone(want)
	seed := rand.Uint64()
	rand.New(rand.NewPCG(seed, 0)).Shuffle(len(got), func(i, j int) { got[i], got[j] = got[j], got[i] })
	if slices.SortFunc(got, compareVersions); !slices.Equal(got, want) {
		t.Errorf("seed %d: sorted %q, want %q", seed, got, want)
	}
}
