package ipc

import (
	"bufio"
	"bytes"
	"errors"
	"io"
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
