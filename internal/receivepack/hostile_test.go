package receivepack

import (
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

// command2 is the head of a push that makes one ref.
func command2(t *testing.T, id git.ObjectID, name, features string) string {
	t.Helper()
	b := pktline.AppendLine(nil, zeros(id)+" "+id.String()+" "+name+"\x00 "+features)
	return string(pktline.AppendFlush(b))
}

func zeros(like git.ObjectID) string {
	return git.RawObjectID(make([]byte, like.Format().Size())).String()
}
