package matrix

import (
	"strings"
	"sync/atomic"
	"testing"
)

func TestAnswersOverSSH(t *testing.T) {
	t.Parallel()
	const head = "000eversion 2\n0000"
	pack, err := packOf([]byte(head + "000dpackfile\n0006\x02x0008\x01PAC0006\x01K0000"))
	if err != nil || string(pack) != "PACK" {
		t.Errorf("packOf() = %q, %v, want PACK", pack, err)
	}
	for _, answer := range []string{"", head, head + "000dpackfile\n0008\x01PAC", head + "000cERR no no", "zzzz"} {
		if _, err := packOf([]byte(answer)); err == nil {
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
