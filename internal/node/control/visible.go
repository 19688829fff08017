package control

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
)

// revisionFields are the fields that name revisions or objects to read, in all messages except FileChange, whose blobs
// package edit checks.
var revisionFields = []string{
	"revision", "revisions", "exclude", "ignore_revisions", "from", "to", "start", "parents", "source", "target", "left",
	"right", "old_base", "old_tip", "new_base", "new_tip", "oid",
	"new_oid",
}

// visibility returns a function that checks the messages of one call. A client of a gateway can only name objects that
// it could fetch. Callers of the node can name all.
func (s *Server) visibility(ctx context.Context, header http.Header) func(message any) error {
	reachable := strings.Fields(header.Get(node.ReachableHeader))
	if len(reachable) == 0 || s.Node == nil {
		return func(any) error { return nil }
	}
	repository := "" // of the first message
	return func(message any) error {
		m, ok := message.(proto.Message)
		if !ok {
			return nil
		}
		if named, ok := message.(interface{ GetRepository() string }); ok && repository == "" {
			repository = named.GetRepository()
		}
		named := map[string]string{} // fields by revision
		addRevisions(named, "", m.ProtoReflect())
		for _, known := range reachable[1:] {
			delete(named, known)
		}
		path, err := git.ParseRepoPath(repository)
		if err != nil || len(named) == 0 {
			return nil // the call reports it
		}
		revision, err := s.Node.FindInvisible(ctx, path, slices.Sorted(maps.Keys(named)), reachable[0] == "1")
		if err == nil && revision != "" {
			err = fault.New(fault.NotFound, "no ref reaches an object %s", fault.Short(revision))
		}
		if field := named[revision]; field != "" {
			err = fault.InField(field, err)
		}
		return err
	}
}

// addRevisions adds the revisions in a message, and the names of their fields. at is the name of the message.
func addRevisions(named map[string]string, at string, m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		isRevision := f.Kind() == protoreflect.StringKind && slices.Contains(revisionFields, string(f.Name()))
		add := func(at string, v protoreflect.Value) {
			switch {
			case isRevision:
				for revision := range strings.SplitSeq(v.String(), "..") { // of a range, if it is one
					named[revision] = at
				}
			case f.Kind() == protoreflect.MessageKind && f.Message().Name() != "FileChange":
				addRevisions(named, at+".", v.Message())
			}
		}
		name := at + string(f.Name())
		if !f.IsList() {
			add(name, value)
			return true
		}
		for i := range value.List().Len() {
			add(fmt.Sprintf("%s[%d]", name, i), value.List().Get(i))
		}
		return true
	})
}

// checkedStream is a stream whose messages are checked when they are received.
type checkedStream struct {
	connect.StreamingHandlerConn
	check func(message any) error
}

func (s *checkedStream) Receive(message any) error {
	if err := s.StreamingHandlerConn.Receive(message); err != nil {
		return err
	}
	return s.check(message)
}
