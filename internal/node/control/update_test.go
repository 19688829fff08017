package control

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// newWritable makes a server for a root that accepts changes.
func newWritable(t *testing.T) (*Server, string) {
	t.Helper()
	runner, err := process.New(process.Options{Classes: map[process.Class]process.Limits{
		receivepack.ClassReceive: {Slots: 4, Queue: 100}, receivepack.ClassHook: {Slots: 4, Queue: 100},
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = runner.Close(context.Background()) })
	pushes, err := receivepack.New(receivepack.Options{Runner: runner, Agent: "test", Scripts: t.TempDir(),
		Journal: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	n, err := storage.New(nil, storage.Options{Root: dir, Pushes: pushes})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return &Server{Options: Options{Node: n}}, dir
}

func TestUpdateOfRefs(t *testing.T) {
	t.Parallel()
	s, dir := newWritable(t)
	repo := gittest.InitAt(t, filepath.Join(dir, "app.git"))
	a, tree := repo.Commit("a"), repo.Git("hash-object", "-t", "tree", "-w", "/dev/null")
	b := repo.Commit("b", a)
	repo.Git("update-ref", "refs/heads/main", a.String())
	call := func(atomic bool, key string, updates ...string) (*packhorsev1.UpdateResponse, error) {
		t.Helper()
		r := &packhorsev1.UpdateRequest{Repository: "app", Atomic: atomic, IdempotencyKey: key}
		for _, text := range updates { // NAME NEW EXPECTED
			part := strings.Split(text, " ")
			r.Updates = append(r.Updates, &packhorsev1.UpdatedRef{Name: part[0], NewOid: part[1], Expected: part[2]})
		}
		answer, err := (&refService{s}).Update(t.Context(), connect.NewRequest(r))
		if err != nil {
			return nil, err
		}
		return answer.Msg, nil
	}
	main, side := "refs/heads/main ", "refs/heads/side "
	made, err := call(false, "", main+b.String()+" "+a.String(), side+a.String()+" absent")
	if err != nil || made.GetResults()[0].GetFault() != nil || made.GetResults()[0].GetOldOid() != a.String() ||
		made.GetVersion().GetGeneration() == 0 {
		t.Fatalf("%v, %v", made, err)
	}
	if repo.ID("main") != b || repo.ID("side") != a {
		t.Error("the refs were not changed")
	}
	for _, atomic := range []bool{true, false} {
		made, err = call(atomic, "", main+a.String()+" "+a.String(), side+b.String()+" ")
		if atomic {
			failed, ok := errors.AsType[*fault.Error](err)
			if !ok || failed.Kind != fault.Aborted || len(failed.Mismatches) != 1 ||
				failed.Mismatches[0] != (fault.Mismatch{Name: "refs/heads/main", Expected: a.String(), Actual: b.String()}) ||
				repo.ID("side") != a {
				t.Errorf("atomic: %v", err)
			}
		} else if err != nil || made.GetResults()[0].GetFault().GetKind() != packhorsev1.FaultKind_FAULT_KIND_ABORTED ||
			made.GetResults()[1].GetFault() != nil || repo.ID("side") != b {
			t.Errorf("not atomic: %v, %v", made, err)
		}
	}
	for _, key := range []string{"k", ""} {
		if _, err := call(false, key, side+b.String()+" absent"); (err == nil) != (key != "") {
			t.Errorf("a repeated call with the key %q: %v", key, err)
		}
	}
	if made, err := call(false, "", "refs/heads/none  "); err != nil || made.GetResults()[0].GetFault() != nil {
		t.Errorf("deleting what does not exist: %v", err)
	}
	for text, want := range map[string]fault.Kind{
		"HEAD " + a.String() + " ":                         fault.Invalid,
		"refs/heads/a..b " + a.String() + " ":              fault.Invalid,
		main + "xyz ":                                      fault.Invalid,
		main + a.String() + " xyz":                         fault.Invalid,
		main + tree[:40] + " ":                             fault.Invalid,
		main + strings.Repeat("1", 40) + " ":               fault.NotFound,
		"refs/heads/main/x " + a.String() + " ":            fault.Precondition,
		"refs/heads/x " + strings.Repeat("1", 64) + " ":    fault.Invalid,
		"refs/heads/none " + a.String() + " " + a.String(): fault.Aborted,
	} {
		if _, err := call(false, "", text); !fault.Is(err, want) {
			t.Errorf("%s: %v, want %v", text, err, want)
		}
	}
	made, err = call(false, "", main[:len(main)-1]+"/x "+a.String()+" ", "refs/heads/fine "+a.String()+" ")
	if got := made.GetResults(); err != nil || got[0].GetFault() == nil || got[1].GetFault() != nil ||
		repo.ID("fine") != a {
		t.Errorf("one name below another ref: %v, %v", made, err)
	}
	repo.Git("config", "receive.denyDeletes", "true")
	made, err = call(false, "", main+b.String()+" ", side+" ", "refs/heads/other "+a.String()+" ")
	if got := made.GetResults(); err != nil || got[0].GetFault() != nil || got[1].GetFault() == nil ||
		got[2].GetFault() != nil {
		t.Errorf("one update without an effect, and one that is refused: %v, %v", made, err)
	}
	repo.Git("config", "receive.denyDeletes", "false")
	if _, err := call(false, "", side+" "+b.String()); err != nil {
		t.Error(err)
	}
	if out, err := repo.Try("rev-parse", "--verify", "side"); err == nil {
		t.Errorf("the deleted ref is %s", out)
	}
}

func TestExpectedHead(t *testing.T) {
	t.Parallel()
	s, dir := newWritable(t)
	gittest.InitAt(t, filepath.Join(dir, "app.git"))
	set := func(branch, expected string) error {
		_, err := (&repositoryService{s}).SetHead(t.Context(), connect.NewRequest(&packhorsev1.SetHeadRequest{
			Repository: "app", Branch: branch, Expected: expected}))
		return err
	}
	if err := set("refs/heads/x", "refs/heads/main"); err != nil {
		t.Error(err)
	}
	failed, ok := errors.AsType[*fault.Error](set("refs/heads/y", "refs/heads/main"))
	if !ok || failed.Kind != fault.Aborted || len(failed.Mismatches) != 1 ||
		failed.Mismatches[0].Actual != "refs/heads/x" {
		t.Errorf("%v", failed)
	}
}
