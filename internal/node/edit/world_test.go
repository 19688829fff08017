package edit_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/write"
)

// state is the state of a repository, as package storage has it. New objects are stored by git.
type state struct {
	git  *gittest.Repo
	t    testing.TB
	repo *repo.Repo
}

var _ write.State = (*state)(nil)

func newState(t testing.TB, r *gittest.Repo) *state {
	t.Helper()
	open, err := repo.Open(r.Dir, repo.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = open.Close() })
	return &state{r, t, open}
}

func (s *state) Repo() *repo.Repo { return s.repo }

func (s *state) Ref(name git.RefName) (git.ObjectID, error) {
	snap, err := s.repo.Refs.Snapshot(context.Background())
	if err != nil {
		return git.ObjectID{}, err
	}
	ref, _, err := snap.Lookup(name)
	return ref.ID, err
}

func (s *state) Read(id git.ObjectID, limit int64) (git.ObjectType, []byte, error) {
	return s.repo.Objects.Read(id, limit)
}

// store stores objects in one pack.
func (s *state) store(objects ...*write.Object) {
	s.t.Helper()
	b := s.git.Batch()
	for _, o := range objects {
		if id := b.Object(o.Type, o.Data); id != o.ID {
			s.t.Fatalf("the ID of a %s is %s, git has %s", o.Type, o.ID, id)
		}
	}
	b.Store()
	if err := s.repo.Refresh(); err != nil {
		s.t.Fatal(err)
	}
}

// gitWith runs git in a repository with further variables in its environment.
func gitWith(r *gittest.Repo, program string, env []string, args ...string) (string, error) {
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Env = r.Dir, append(gittest.Env(), env...)
	out, err := cmd.CombinedOutput()
	return strings.TrimSuffix(string(out), "\n"), err
}

// newestGit returns the newest git at hand.
func newestGit() string {
	if program := os.Getenv("PACKHORSE_TEST_NEWER_GIT"); program != "" {
		return program
	}
	return "git"
}

// gitFrom is gitWith for the system's git, with a file as its input.
func gitFrom(r *gittest.Repo, file string, env []string, args ...string) (string, error) {
	input, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer input.Close()
	cmd := exec.Command("git", args...)
	cmd.Dir, cmd.Env, cmd.Stdin = r.Dir, append(gittest.Env(), env...), input
	out, err := cmd.CombinedOutput()
	return strings.TrimSuffix(string(out), "\n"), err
}
