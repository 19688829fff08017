package node

import (
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

// RefListSize is the size of the pieces in which a long list of refs is sent, in bytes.
const RefListSize = 64 << 10

// RefList sends a list of refs: a short one at once with its length, a long one in pieces.
type RefList struct {
	Buf       []byte // lines that were not sent yet
	Response  ResponseWriter
	Outcome   *Outcome // counts the refs
	HasLength bool     // the response has a length: not in a stateful session

	isLong bool // a piece was sent
}

// EndRef counts a ref that was added to Buf, and makes room for another line.
func (l *RefList) EndRef() error {
	l.Outcome.Refs++
	return l.EndLine()
}

// EndLine sends Buf unless there is room for another line.
func (l *RefList) EndLine() error {
	if len(l.Buf) < RefListSize-2*git.MaxRefName {
		return nil
	}
	if !l.isLong {
		l.isLong = true
		// A client that reads slowly must not keep a slot of the small lane.
		if err := l.Response.StartBulk(false); err != nil {
			return err
		}
	}
	_, err := l.Response.Write(l.Buf)
	l.Buf = l.Buf[:0]
	return err
}

// End ends the list.
func (l *RefList) End() error {
	l.Buf = pktline.AppendFlush(l.Buf)
	if !l.isLong && l.HasLength {
		l.Response.SetLength(int64(len(l.Buf)))
	}
	_, err := l.Response.Write(l.Buf)
	return err
}
