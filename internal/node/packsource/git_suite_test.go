package packsource_test

import (
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
	"github.com/packhorse-git/packhorse/internal/node/packsource/sourcetest"
)

func fromGit(t testing.TB, program string) packsource.Source {
	return sourcetest.FromGit(t, program, process.Limits{Slots: 2, Queue: 100})
}

func TestGit(t *testing.T) { sourcetest.Run(t, fromGit) }

func TestGitPacks(t *testing.T) { sourcetest.RunPacks(t, fromGit) }
