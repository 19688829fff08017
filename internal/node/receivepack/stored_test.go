package receivepack

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// Store is a store in memory. NewStore is set by tests in package receivepack_test, because package store imports this
// one.
type Store interface {
	// Import copies a bare repository into the store, and returns it.
	Import(t testing.TB, dir string) Stored
}

// Stored is a repository in a Store, as this package and package storage use it.
type Stored interface {
	repo.Place
	Dir() string
	Push(ctx context.Context) (Shadow, error)
}

var NewStore func(t *testing.T) Store

// theStore is the store of TestInStore.
var theStore Store

// inStore are the tests of pushes that hold in a store as they are. inStoreLong are those that make test leaves out.
var (
	inStore = map[string]func(*testing.T){
		"Push": TestPush, "Reports": TestReportsAsGit, "Failed": TestFailedPushes, "Hooks": TestHooksReadAndWrite,
		"MissingRefs": TestNoHookForMissingRefs, "ClientLeaves": TestHookAfterAClientThatLeft,
		"ClientGoesAway": TestClientGoesAway, "Stream": TestStreamThatDoesNotEnd, "OneOfMany": TestOneOfManyWins,
		"MissingLFS": TestMissingLFS, "Kinds": TestKinds, "Rules": TestRules,
	}
	inStoreLong = map[string]func(*testing.T){
		"Advertisement": TestAdvertisement, "FsckSeverities": TestFsckSeverities, "Decisions": TestDecisionsFailClosed,
		"Scripts": TestScriptsThatCannotBeRun, "HookLeaves": TestHookLeavesAProcess, "HookOutput": TestHooksSpeakInOrder,
		"GitWithinHooks": TestGitWithinHooks, "Refused": TestRefusedAtOnce, "HostilePacks": TestHostilePacks,
		"Killed": TestKilledAtAnyMoment, "Register": TestRegister,
	}
)

// TestInStore repeats tests with the repositories in a store. The others are about files of plain repositories: locks,
// the journal, reflogs, own hooks, borrowed objects, reftables.
func TestInStore(t *testing.T) {
	t.Parallel()
	theStore = NewStore(t)
	for name, test := range inStore {
		t.Run(name, test)
	}
	for name, test := range inStoreLong {
		t.Run(name, func(t *testing.T) {
			if testing.Short() {
				t.Skip("only without -short")
			}
			test(t)
		})
	}
}

// isInStore reports whether a test is a part of TestInStore.
func isInStore(t testing.TB) bool { return strings.HasPrefix(t.Name(), "TestInStore/") }

// storedWorld keeps the repository of a world and one in a store alike. Changes that the test makes in the repository
// are imported before the next request. A push changes the repository before its report is sent.
type storedWorld struct {
	w *world

	mu       sync.Mutex
	repo     Stored
	imported string // the repository when it was imported or changed by a push
}

// current returns the repository in the store.
func (s *storedWorld) current() Stored {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := s.state(); now != s.imported {
		s.repo, s.imported = theStore.Import(s.w.t, s.w.Dir), now
	}
	return s.repo
}

// state returns a text that changes when the test changes the repository.
func (s *storedWorld) state() string {
	var text strings.Builder
	err := filepath.WalkDir(s.w.Dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err == nil {
			fmt.Fprintln(&text, path, info.Size(), info.ModTime())
		}
		return err
	})
	if err != nil {
		s.w.t.Error(err)
	}
	return text.String()
}

func (s *storedWorld) newShadow() Shadow {
	stored := s.current()
	shadow, err := stored.Push(context.Background())
	if err != nil {
		s.w.t.Error(err)
	}
	return &storedShadow{Shadow: shadow, world: s, repo: stored, close: sync.OnceFunc(shadow.Close)}
}

// storedShadow is a shadow of a store that also changes the repository of the world.
type storedShadow struct {
	Shadow
	world *storedWorld
	repo  Stored
	close func()
}

func (s *storedShadow) Close() { s.close() }

func (s *storedShadow) Commit(ctx context.Context, proposals []Proposal) []CommitResult {
	results := s.Shadow.Commit(ctx, proposals)
	s.world.mu.Lock()
	defer s.world.mu.Unlock()
	if err := s.world.export(s.repo); err != nil {
		s.world.w.t.Error(err)
	}
	s.world.imported = s.world.state()
	return results
}

// export copies packs, refs and HEAD into the repository of the world.
func (s *storedWorld) export(from Stored) error {
	layers, err := from.Layers(context.Background())
	if err != nil {
		return err
	}
	done, err := from.Use(context.Background(), nil)
	if err != nil {
		return err
	}
	defer done()
	packs, err := filepath.Glob(filepath.Join(from.Dir(), "objects/pack/*"))
	for _, path := range packs {
		linkErr := os.Link(path, filepath.Join(s.w.Dir, "objects/pack", filepath.Base(path)))
		if !errors.Is(linkErr, fs.ErrExist) {
			err = errors.Join(err, linkErr)
		}
	}
	packed, createErr := os.Create(filepath.Join(s.w.Dir, "packed-refs.new"))
	if err = errors.Join(err, createErr); err != nil {
		return err
	}
	_, err = refs.WritePacked(packed, layers.Base, layers.Changes)
	return errors.Join(err, packed.Close(), os.Rename(packed.Name(), filepath.Join(s.w.Dir, "packed-refs")),
		os.RemoveAll(filepath.Join(s.w.Dir, "refs")), os.MkdirAll(filepath.Join(s.w.Dir, "refs/heads"), 0o755),
		os.WriteFile(filepath.Join(s.w.Dir, "HEAD"), []byte("ref: "+string(layers.Head)+"\n"), 0o644))
}
