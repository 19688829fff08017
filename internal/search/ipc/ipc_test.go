package ipc

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/packhorse-git/packhorse/internal/proto/workerv1"
)

func TestMessagesAreReadAsWritten(t *testing.T) {
	t.Parallel()
	messages := []*workerv1.SearchRequest{
		{}, {Query: "foo \x00\xff", Limit: 10, Repositories: &workerv1.RepositorySet{}},
		{Repositories: &workerv1.RepositorySet{Bits: []uint64{1, 1 << 63}}, ListShards: true},
	}
	var b bytes.Buffer
	for _, m := range messages {
		if err := Write(&b, m); err != nil {
			t.Fatal(err)
		}
	}
	whole := b.Bytes()
	r := bufio.NewReader(&b)
	for _, want := range messages {
		var got workerv1.SearchRequest
		if err := Read(r, &got); err != nil || !proto.Equal(&got, want) {
			t.Errorf("got %v, %v; want %v", &got, err, want)
		}
	}
	var m workerv1.SearchRequest
	if err := Read(r, &m); err != io.EOF {
		t.Errorf("at the end: got %v, want io.EOF", err)
	}
	if err := Read(bufio.NewReader(bytes.NewReader(whole[1:5])), &m); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("of a message cut off: got %v, want an unexpected EOF", err)
	}
}

func TestMessagesAreLimited(t *testing.T) {
	t.Parallel()
	if err := Write(io.Discard, &workerv1.Document{Content: make([]byte, MaxMessage)}); err == nil {
		t.Error("a message above the limit was written")
	}
	r := bufio.NewReader(bytes.NewReader(protowire.AppendVarint(nil, MaxMessage+1)))
	var tooLarge *protodelim.SizeTooLargeError
	if err := Read(r, &workerv1.Document{}); !errors.As(err, &tooLarge) {
		t.Errorf("got %v, want a SizeTooLargeError", err)
	}
}

func TestHello(t *testing.T) {
	t.Parallel()
	server := Build{"0.1.0", "abc"}
	for _, test := range []struct {
		worker Build
		want   string // the error
	}{
		{server, ""},
		{Build{"0.1.0", ""}, ""},
		{Build{"0.1.0", "def"}, "packhorse-search 0.1.0 (def) does not match packhorse 0.1.0 (abc): install both programs " +
			"from the same release, and restart the server"},
		{Build{"0.2.0", ""}, "packhorse-search 0.2.0 does not match packhorse 0.1.0 (abc): install both programs from the " +
			"same release, and restart the server"},
	} {
		var b bytes.Buffer
		if err := WriteHello(&b, test.worker); err != nil {
			t.Fatal(err)
		}
		got := ""
		if err := ReadHello(bufio.NewReader(&b), server); err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("ReadHello from worker %v: got error %q, want %q", test.worker, got, test.want)
		}
	}
}

func TestFindProgram(t *testing.T) {
	beside, path := t.TempDir(), t.TempDir()
	t.Setenv("PATH", path)
	server := filepath.Join(beside, "packhorse")
	check := func(server, want string) {
		t.Helper()
		got, err := FindProgram(server)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("FindProgram(%q) = %q, %v; want %q", server, got, err, want)
		}
	}
	check(server, "")
	check("", "")
	for _, dir := range []string{path, beside} { // beside the server it is found first
		if err := os.WriteFile(filepath.Join(dir, Program), nil, 0o700); err != nil {
			t.Fatal(err)
		}
		check(server, filepath.Join(dir, Program))
		check("", filepath.Join(path, Program))
	}
}

func TestSet(t *testing.T) {
	t.Parallel()
	var s Set
	want := []uint32{0, 63, 64, 1000}
	for _, id := range want {
		s.Add(id)
	}
	if got := s.List(); !slices.Equal(got, want) || s.Len() != len(want) {
		t.Errorf("got %v, length %d; want %v", got, s.Len(), want)
	}
}
