package packcache_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/node/packcache"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
	"github.com/packhorse-git/packhorse/internal/node/packsource/sourcetest"
)

// overGit is a cache over git. A budget of one byte makes a cache that cannot write.
func overGit(t testing.TB, program string, budget int64) *packcache.Cache {
	t.Helper()
	inner := sourcetest.FromGit(t, program, process.Limits{Slots: 2, Queue: 100})
	c, err := packcache.Open(inner, packcache.Options{
		Dir: t.TempDir(), MaxBytes: budget, MinFree: -1, Grace: -1, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func TestSuite(t *testing.T) {
	sourcetest.Run(t, func(t testing.TB, program string) packsource.Source { return overGit(t, program, 1<<30) })
}

func TestSuiteWithoutRoom(t *testing.T) {
	if testing.Short() {
		t.Skip("short")
	}
	sourcetest.Run(t, func(t testing.TB, program string) packsource.Source { return overGit(t, program, 1) })
}

func TestSuiteWarm(t *testing.T) {
	if testing.Short() {
		t.Skip("short")
	}
	newSource := func(t testing.TB, program string) packsource.Source {
		if program != "" {
			return overGit(t, program, 1<<30)
		}
		return warm{overGit(t, program, 1<<30)}
	}
	sourcetest.Run(t, newSource)
	sourcetest.RunPacks(t, newSource)
}

// warm answers from entries only: it has every pack made before it is asked for.
type warm struct{ *packcache.Cache }

func (w warm) Open(ctx context.Context, spec *packsource.Spec) (packsource.Pack, error) {
	first, err := w.Cache.Open(ctx, spec)
	if err != nil {
		return nil, err
	}
	err = first.Send(ctx, new(sourcetest.Output))
	first.Close()
	if err != nil {
		return nil, err
	}
	second, err := w.Cache.Open(ctx, spec)
	if err == nil && second.Info().Result != packsource.Hit {
		second.Close()
		return nil, errors.New("not found although it was made before")
	}
	return second, err
}
