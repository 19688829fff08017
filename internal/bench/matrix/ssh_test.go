package matrix

import (
	"bytes"
	"io"
	"strings"
	"sync/atomic"
	"testing"
)

func TestAnswersOverSSH(t *testing.T) {
	t.Parallel()
	const head = "000eversion 2\n0000"
	var pack bytes.Buffer
	if err := packOf(strings.NewReader(head+"000dpackfile\n0006\x02x0008\x01PAC0006\x01K0000"), &pack); err != nil ||
		pack.String() != "PACK" {
		t.Errorf("%q, %v", &pack, err)
	}
	for _, answer := range []string{"", head, head + "000dpackfile\n0008\x01PAC", head + "000cERR no no", "zzzz"} {
		if err := packOf(strings.NewReader(answer), io.Discard); err == nil {
			t.Errorf("%q is taken for a whole answer", answer)
		}
	}
	l := &sshLoad{size: 100}
	for answer, good := range map[string]bool{
		strings.Repeat("x", 96) + "0000": true, strings.Repeat("x", 90) + "0000": true, strings.Repeat("x", 100): false,
		strings.Repeat("x", 50) + "0000": false, "": false,
	} {
		var received atomic.Int64
		if err := l.drain(strings.NewReader(answer), make([]byte, 7), &received, func() {}); (err == nil) != good ||
			received.Load() != int64(len(answer)) {
			t.Errorf("%d bytes: %v", len(answer), err)
		}
	}
}
