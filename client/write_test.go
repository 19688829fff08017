package client

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/fault/faultrpc"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// TestCommitWriter checks the parts of files around the limit of a part, and the end of a call by the node.
func TestCommitWriter(t *testing.T) {
	t.Parallel()
	name := packhorsev1connect.CommitServiceCreateStreamProcedure
	c := started(t, procedure{name, connect.NewClientStreamHandler(name,
		func(_ context.Context, s *connect.ClientStream[packhorsev1.CreateStreamRequest]) (
			*connect.Response[packhorsev1.CreateStreamResponse], error) {
			var got strings.Builder
			open := false
			for s.Receive() {
				m := s.Msg()
				if m.GetStart().GetBranch() == "refused" {
					return nil, faultrpc.Error(fault.InField("branch", fault.New(fault.Invalid, "no such branch")))
				}
				if open != (m.GetStart() == nil && len(m.GetChanges()) == 0) {
					return nil, errors.New("content at a wrong place")
				}
				if open {
					fmt.Fprint(&got, "+", len(m.GetContent()))
					open = m.GetContinued()
				}
				for _, change := range m.GetChanges() {
					fmt.Fprint(&got, " ", change.GetPut().GetPath(), len(change.GetPut().GetContent()), change.GetDelete().GetPath())
					open = change.GetPut().GetContinued()
				}
			}
			created := &packhorsev1.CommitServiceCreateResponse{Commit: got.String()}
			return connect.NewResponse(&packhorsev1.CreateStreamResponse{Created: created}), s.Err()
		})})
	begin := func(branch string) *CommitWriter {
		t.Helper()
		w, err := c.OpenCommit(t.Context(), &packhorsev1.CommitServiceCreateRequest{Branch: branch})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { w.Close() })
		return w
	}
	w := begin("main")
	want := ""
	for _, size := range []int{0, 1, maxPart - 1, maxPart, maxPart + 1, 3 * maxPart} {
		file := &packhorsev1.PutFile{Path: "f"}
		if err := w.AddFile(file, strings.NewReader(strings.Repeat("x", size))); err != nil {
			t.Fatal(err)
		}
		want += fmt.Sprint(" f", min(size, maxPart))
		for ; size >= maxPart; size -= maxPart {
			want += fmt.Sprint("+", min(size-maxPart, maxPart))
		}
	}
	remove := &packhorsev1.FileChange_Delete{Delete: &packhorsev1.DeleteFile{Path: "g"}}
	err := w.Add(&packhorsev1.FileChange{Change: remove})
	if err != nil {
		t.Fatal(err)
	}
	if made, err := w.Commit(); err != nil || made.GetCommit() != want+" 0g" {
		t.Errorf("got %q, %v; want %q", made.GetCommit(), err, want+" 0g")
	}
	broken := errors.New("broken")
	if err := begin("main").AddFile(&packhorsev1.PutFile{}, iotest.ErrReader(broken)); !errors.Is(err, broken) {
		t.Errorf("a reader that fails: %v", err)
	}
	w = begin("refused")
	for err = nil; err == nil; {
		err = w.AddFile(&packhorsev1.PutFile{Path: "f"}, strings.NewReader("x"))
	}
	if FaultOf(err).GetField() != "branch" || KindOf(err) != packhorsev1.FaultKind_FAULT_KIND_INVALID {
		t.Errorf("the node ended the call: %v", err)
	}
	if w := begin("main"); w.Close() != nil || w.Add() == nil {
		t.Error("a change was added after Close")
	}
}

// TestArchiveIsChecked checks that a wrong size or hash is an error at the end.
func TestArchiveIsChecked(t *testing.T) {
	t.Parallel()
	sum := sha256.Sum256([]byte("onetwo"))
	right := hex.EncodeToString(sum[:])
	c := started(t, stream(packhorsev1connect.ArchiveServiceArchiveProcedure,
		func(_ context.Context, r *packhorsev1.ArchiveRequest, send func(*packhorsev1.ArchiveResponse) error) error {
			header := &packhorsev1.ArchiveHeader{Commit: "1", Size: 6, Sha256: right}
			switch r.GetRevision() {
			case "empty":
				return nil
			case "size":
				header.Size = 7
			case "hash":
				header.Sha256 = strings.Repeat("0", 64)
			}
			return errors.Join(send(&packhorsev1.ArchiveResponse{Header: header, Data: []byte("one")}),
				send(&packhorsev1.ArchiveResponse{Data: []byte("two")}))
		}))
	for revision, kind := range map[string]packhorsev1.FaultKind{
		"right": packhorsev1.FaultKind_FAULT_KIND_UNSPECIFIED,
		"size":  packhorsev1.FaultKind_FAULT_KIND_CORRUPT,
		"hash":  packhorsev1.FaultKind_FAULT_KIND_CORRUPT,
	} {
		for _, read := range []func(io.Reader) ([]byte, error){io.ReadAll, func(r io.Reader) ([]byte, error) {
			var all strings.Builder
			_, err := io.Copy(&all, r)
			return []byte(all.String()), err
		}} {
			a, err := c.OpenArchive(t.Context(), &packhorsev1.ArchiveRequest{Revision: revision})
			if err != nil {
				t.Fatal(err)
			}
			all, err := read(a)
			if string(all) != "onetwo" || KindOf(err) != kind || (err == nil) != (revision == "right") || a.Commit != "1" {
				t.Errorf("%s: got %q, %v; want a fault of kind %v", revision, all, err, kind)
			}
			a.Close()
		}
	}
	if a, err := c.OpenArchive(t.Context(), &packhorsev1.ArchiveRequest{Revision: "empty"}); err == nil {
		t.Errorf("no message at all is an archive: %+v", a)
	}
}

// TestMessages checks the messages of a stream that fails, and a loop that is left.
func TestMessages(t *testing.T) {
	t.Parallel()
	c := started(t, stream(packhorsev1connect.DiffServiceFormatPatchProcedure,
		func(_ context.Context, r *packhorsev1.FormatPatchRequest, send func(*packhorsev1.FormatPatchResponse) error) error {
			if r.GetTo() == "" {
				return nil
			}
			return errors.Join(send(&packhorsev1.FormatPatchResponse{Data: []byte("From ")}),
				send(&packhorsev1.FormatPatchResponse{Data: []byte("Ada")}), faultrpc.Error(fault.New(fault.Corrupt, "broken")))
		}))
	read := func(to string, most int) (text string, err error) {
		request := &packhorsev1.FormatPatchRequest{To: to}
		for part, err := range Messages(t.Context(), request, c.Diffs().FormatPatch) {
			if text += string(part.GetData()); err != nil || len(text) >= most {
				return text, err
			}
		}
		return text, nil
	}
	if text, err := read("", 100); text != "" || err != nil {
		t.Errorf("an empty stream: got %q, %v", text, err)
	}
	if text, err := read("main", 1); text != "From " || err != nil {
		t.Errorf("the first message: got %q, %v", text, err)
	}
	if text, err := read("main", 100); text != "From Ada" || KindOf(err) != packhorsev1.FaultKind_FAULT_KIND_CORRUPT {
		t.Errorf("a stream that fails: got %q, %v", text, err)
	}
}

// TestCheckMerges sends more pairs than a message holds, and leaves the loop early.
func TestCheckMerges(t *testing.T) {
	t.Parallel()
	name := packhorsev1connect.MergeServiceCheckProcedure
	c := started(t, procedure{name, connect.NewBidiStreamHandler(name, func(_ context.Context,
		s *connect.BidiStream[packhorsev1.CheckRequest, packhorsev1.CheckResponse]) error {
		for isFirst := true; ; isFirst = false {
			request, err := s.Receive()
			if err != nil {
				if errors.Is(err, io.EOF) {
					return nil
				}
				return err
			}
			if request.GetRepository() == "none" {
				return faultrpc.Error(fault.New(fault.NotFound, "no such repository"))
			}
			if isFirst != (request.GetRepository() != "") {
				return errors.New("the repository is only in the first message")
			}
			for _, pair := range request.GetPairs() {
				if err := s.Send(&packhorsev1.CheckResponse{Id: pair.GetId(), Tree: pair.GetSource()}); err != nil {
					return err
				}
			}
		}
	})})
	pairs := make([]*packhorsev1.MergePair, 2000)
	for i := range pairs {
		pairs[i] = &packhorsev1.MergePair{Id: fmt.Sprint(i), Source: strings.Repeat("x", 1000)}
	}
	check := func(repository string, pairs []*packhorsev1.MergePair) (n int, err error) {
		for result, err := range c.CheckMerges(t.Context(), repository, pairs) {
			if err != nil {
				return n, err
			}
			if result.GetId() != fmt.Sprint(n) {
				t.Fatalf("result %d is of pair %s", n, result.GetId())
			}
			n++
		}
		return n, nil
	}
	for _, count := range []int{0, 1, maxPairs, len(pairs)} {
		if n, err := check("r", pairs[:count]); n != count || err != nil {
			t.Errorf("%d of %d results, %v", n, count, err)
		}
	}
	if _, err := check("none", pairs); !IsNotFound(err) {
		t.Errorf("a repository that does not exist: %v", err)
	}
	bad := append(slices.Clone(pairs[:maxPairs]), &packhorsev1.MergePair{Id: "\xff"})
	if n, err := check("r", bad); n != maxPairs || err == nil {
		t.Errorf("a pair that cannot be sent: %d results, %v", n, err)
	}
	for range c.CheckMerges(t.Context(), "r", pairs) {
		break
	}
}
