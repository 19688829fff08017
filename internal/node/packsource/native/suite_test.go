package native_test

import (
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
	"github.com/packhorse-git/packhorse/internal/node/packsource/native"
	"github.com/packhorse-git/packhorse/internal/node/packsource/sourcetest"
)

// newSource returns a Source that leaves packs to git as its options say.
func newSource(t testing.TB, always bool) *native.Source {
	git := sourcetest.FromGit(t, "", process.Limits{Slots: 2, Queue: 100})
	return native.New(native.Options{Git: git, Always: always, Threads: 2})
}

func makeNative(t testing.TB, program string) packsource.Source {
	if program != "" {
		return nil
	}
	return newSource(t, true)
}

func TestSource(t *testing.T) { sourcetest.Run(t, makeNative) }

func TestPacks(t *testing.T) { sourcetest.RunPacks(t, makeNative) }

func TestHugePacks(t *testing.T) { sourcetest.RunHuge(t, makeNative) }

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
