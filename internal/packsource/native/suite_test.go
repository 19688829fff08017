package native_test

import (
	"context"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/packsource"
	"github.com/packhorse-git/packhorse/internal/packsource/native"
	"github.com/packhorse-git/packhorse/internal/packsource/sourcetest"
)

// newSource returns a Source that leaves packs to git as its options say.
func newSource(t testing.TB, always bool) *native.Source {
	git := sourcetest.FromGit(t, "", process.Limits{Slots: 2, Queue: 100})
	return native.New(native.Options{Git: git, Always: always, Threads: 2})
}

// onlyNative makes all packs in process, except for those whose filter the package does not support.
type onlyNative struct{ native, git packsource.Source }

func (s onlyNative) Open(ctx context.Context, spec *packsource.Spec) (packsource.Pack, error) {
	if n := strings.Count(spec.Filter, "sparse:"); n > 1 || n == 1 && (strings.Contains(spec.Filter, "tree:") ||
		strings.Contains(spec.Filter, "object:")) {
		return s.git.Open(ctx, spec)
	}
	return s.native.Open(ctx, spec)
}

func makeNative(t testing.TB, program string) packsource.Source {
	if program != "" {
		return nil
	}
	return onlyNative{newSource(t, true), newSource(t, false)}
}

func TestSource(t *testing.T) { sourcetest.Run(t, makeNative) }

func TestPacks(t *testing.T) { sourcetest.RunPacks(t, makeNative) }

func TestPacksWithFallback(t *testing.T) {
	if testing.Short() {
		t.Skip("short")
	}
	sourcetest.RunPacks(t, func(t testing.TB, program string) packsource.Source {
		if program != "" {
			return nil
		}
		return newSource(t, false)
	})
}
