package control

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// zipped packs what r gives.
func zipped(t *testing.T, r io.Reader) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := io.Copy(w, r); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// Messages that take many times their bytes once they are unpacked or read are refused before that.
func TestMessagesThatGrow(t *testing.T) {
	t.Parallel()
	_, address := realPort(t, "tcp", Options{})
	h1 := new(http.Transport)
	t.Cleanup(h1.CloseIdleConnections)
	many := packhorsev1connect.RefServiceResolveManyProcedure
	most := &packhorsev1.ResolveManyRequest{}
	var text []string
	for i := range 10_000 {
		name := fmt.Sprintf(`,{[\"%d`, i)
		most.Requests = append(most.Requests, &packhorsev1.ResolveRequest{Repository: "app", Name: name})
		text = append(text, fmt.Sprintf(`{"repository": "app", "name": %q}`, name))
	}
	longest, err := proto.Marshal(&packhorsev1.ResolveRequest{Repository: strings.Repeat("a", maxMessage-5)})
	if err != nil || len(longest) != maxMessage {
		t.Fatal(len(longest), err)
	}
	asked, err := proto.Marshal(most)
	if err != nil {
		t.Fatal(err)
	}
	resolve := packhorsev1connect.RefServiceResolveProcedure
	for name, c := range map[string]struct {
		procedure, kind, packed, body string
		code                          connect.Code // 0: none
		says                          string
	}{
		"many fields": {many, "proto", "", strings.Repeat("\x0a\x00", maxFields+1), connect.CodeInvalidArgument,
			"fields"},
		"other fields": {resolve, "proto", "", strings.Repeat("\x50\x00", maxFields+1), connect.CodeInvalidArgument,
			"fields"},
		"a bad field":       {resolve, "proto", "", "\x50", connect.CodeInvalidArgument, "unmarshal"},
		"as many as may be": {many, "proto", "", string(asked), 0, "results"},
		"much JSON": {many, "json", "", `{"requests": [{}` + strings.Repeat(",{}", maxJSONParts/2) + `]}`,
			connect.CodeInvalidArgument, "objects"},
		"as much as may be": {many, "json", "", `{"requests": [` + strings.Join(text, ",") + `]}`, 0, "results"},
		"packed": {many, "json", "gzip", zipped(t,
			strings.NewReader(`{"requests": [{"repository": "app", "name": "main"}]}`)), 0, "found"},
		"a bomb": {resolve, "proto", "gzip", zipped(t, io.LimitReader(zeros{}, 64<<20)),
			connect.CodeResourceExhausted, errUnpacked.Error()},
		"a byte too long": {resolve, "proto", "gzip", zipped(t, io.LimitReader(zeros{}, maxMessage+1)),
			connect.CodeResourceExhausted, "larger"},
		"as long as may be": {resolve, "proto", "gzip", zipped(t, bytes.NewReader(longest)), connect.CodeInvalidArgument,
			"longer than"},
		"damaged when packed": {resolve, "proto", "gzip", zipped(t, strings.NewReader("abc"))[:20],
			connect.CodeInvalidArgument, "decompress"},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+c.procedure,
			strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/"+c.kind)
		r.Header.Set("Accept-Encoding", "identity")
		if c.packed != "" {
			r.Header.Set("Content-Encoding", c.packed)
		}
		response, err := h1.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(response.Body)
		response.Body.Close()
		if ok := response.StatusCode == http.StatusOK; err != nil || ok != (c.code == 0) {
			t.Errorf("%s: %d %.300s %v", name, response.StatusCode, answer, err)
		}
		if c.code != 0 && (!strings.Contains(string(answer), `"`+c.code.String()+`"`) ||
			!strings.Contains(string(answer), c.says)) {
			t.Errorf("%s: %.300s", name, answer)
		}
	}
}
