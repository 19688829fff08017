package control

import (
	"context"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/node/inspect"
	"github.com/packhorse-git/packhorse/internal/node/lookup"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

const (
	maxHunks   = 1000 // of one message
	hunkFields = 200  // bytes of the fields of a hunk and its commit beside texts, about
)

func (s *historyService) Blame(ctx context.Context, request *connect.Request[packhorsev1.BlameRequest],
	stream *connect.ServerStream[packhorsev1.BlameResponse]) error {
	w, err := s.beginWork(ctx, request)
	if err != nil {
		return err
	}
	defer w.end()
	m := request.Msg
	q := inspect.BlameRequest{In: lookup.PathIn{Revision: m.GetRevision(), Path: m.GetPath()},
		First: int(m.GetFirstLine()), Last: int(m.GetLastLine()), IgnoreWhitespace: m.GetIgnoreWhitespace(),
		Moves: m.GetDetectMoves(), Copies: m.GetDetectCopies(), Ignore: m.GetIgnoreRevisions(), Caller: w.caller}
	send := sendTo(w, stream)
	hunks := batch[*inspect.Hunk]{items: maxHunks, bytes: maxPart, send: func(list []*inspect.Hunk) error {
		answer := new(packhorsev1.BlameResponse)
		for _, h := range list {
			answer.Hunks = append(answer.Hunks, hunkMessage(h))
			if c := h.New; c != nil {
				answer.Commits = append(answer.Commits, &packhorsev1.BlameCommit{Oid: c.ID.String(),
					Author: signatureMessage(&c.Author), Committer: signatureMessage(&c.Committer), Summary: c.Summary})
			}
		}
		return send(answer)
	}}
	err = s.Node.Blame(ctx, w.repository, q, func(h *inspect.Hunk) error {
		size := len(h.Path) + len(h.PreviousPath) + hunkFields
		if c := h.New; c != nil {
			size += len(c.Summary) + len(c.Author.Name) + len(c.Author.Email) + len(c.Committer.Name) + len(c.Committer.Email)
		}
		return hunks.add(h, size)
	})
	if err != nil {
		return err
	}
	return hunks.flush()
}

func hunkMessage(h *inspect.Hunk) *packhorsev1.BlameHunk {
	m := &packhorsev1.BlameHunk{FirstLine: int32(h.First), Lines: int32(h.Lines), Commit: h.Commit.String(),
		OriginalLine: int32(h.OriginalLine), OriginalPath: h.Path, Boundary: h.Boundary, PreviousPath: h.PreviousPath}
	if !h.Previous.IsZero() {
		m.PreviousCommit = h.Previous.String()
	}
	return m
}
