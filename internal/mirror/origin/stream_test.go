package origin

import (
	"context"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
)

// localSessions starts git itself, as an SSH server does.
type localSessions struct {
	root string
	v0   bool
}

type localSession struct {
	io.WriteCloser
	io.Reader
	wait func() error
}

func (s *localSession) Close() error {
	err := s.WriteCloser.Close()
	_ = s.wait()
	return err
}

func (s localSessions) open(ctx context.Context, path string, service protocol.Service,
	_ ...string) (io.ReadWriteCloser, error) {
	if path == "denied.git" {
		return nil, fault.New(fault.Denied, "no access")
	}
	cmd := exec.CommandContext(ctx, string(service), filepath.Join(s.root, path))
	cmd.Env = gittest.Env()
	if !s.v0 {
		cmd.Env = append(cmd.Env, "GIT_PROTOCOL=version=2")
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &localSession{in, out, cmd.Wait}, cmd.Start()
}

func (localSessions) Close() error { return nil }

func TestStream(t *testing.T) {
	t.Parallel()
	for _, v0 := range []bool{false, true} {
		root := t.TempDir()
		repo := gittest.InitAt(t, filepath.Join(root, "a.git"))
		one := repo.Commit("one")
		two := repo.Commit("two", one)
		repo.Git("update-ref", "refs/heads/main", two.String())
		repo.Git("tag", "-a", "-m", "x", "v1", one.String())
		o := open(t, "http://127.0.0.1:1")
		o.sessions = localSessions{root, v0}
		if o.CanRelay() {
			t.Error("CanRelay = true, want false")
		}
		refs, err := o.Refs(t.Context(), "a.git", none, nil)
		list := mustList(t, refs, err)
		names := []git.RefName{"refs/heads/main", "refs/tags/v1"}
		if got := slices.Collect(func(yield func(git.RefName) bool) {
			for _, r := range list.Refs {
				if !yield(r.Name) {
					return
				}
			}
		}); !slices.Equal(got, names) || list.Refs[1].Peeled != one || list.Head != "refs/heads/main" || list.HeadID != two {
			t.Errorf("v0 %v: refs %v, HEAD %q %v, want %v, main %v", v0, list.Refs, list.Head, list.HeadID, names, two)
		}
		list = listOf(t)(o.Refs(t.Context(), "a.git", none, []string{"refs/tags/"}))
		if len(list.Refs) != 1 || list.HeadID != two {
			t.Errorf("v0 %v: %d tags, HEAD %v, want 1, %v", v0, len(list.Refs), list.HeadID, two)
		}
		pack, err := o.Fetch(t.Context(), "a.git", none, FetchRequest{Format: git.SHA1, Wants: []git.ObjectID{two},
			Haves: []git.ObjectID{one}})
		if err != nil {
			t.Fatalf("v0 %v: Fetch error = %v, want none", v0, err)
		}
		content, err := io.ReadAll(pack)
		if err != nil || pack.Close() != nil {
			t.Fatalf("v0 %v: reading the pack: %v", v0, err)
		}
		if got := inspect(t, repo, git.SHA1, content); got != 3 {
			t.Errorf("v0 %v: pack of %d objects, want 3", v0, got)
		}
		if _, err := o.Refs(t.Context(), "denied.git", none, nil); !fault.Is(err, fault.Denied) || IsDown(err) {
			t.Errorf("v0 %v: error = %v, want denied", v0, err)
		}
		if _, err := o.Refs(t.Context(), "missing.git", none, nil); err == nil {
			t.Errorf("v0 %v: refs of a missing repository, want an error", v0)
		}
		if err := o.Probe(t.Context(), "a.git", protocol.UploadPack, none); !fault.Is(err, fault.Denied) {
			t.Errorf("Probe error = %v, want denied", err)
		}
	}
}
