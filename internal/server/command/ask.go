package command

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/packhorse-git/packhorse/internal/transport/httpreuse"
)

// maxAnswer is the maximum size of a server's response in bytes.
const maxAnswer = 64 << 20

// refusal is a response of a server other than 200.
type refusal struct {
	status int
	text   string
}

func (e *refusal) Error() string { return e.text }

// ask gets a page of a private listener, HOST:PORT. The error is a *refusal if the response is not 200.
func ask(ctx context.Context, address, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := httpreuse.Client(&http.Transport{DisableKeepAlives: true}).Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err == nil && response.StatusCode != http.StatusOK {
		err = &refusal{response.StatusCode, fmt.Sprintf("%s: %.200s", response.Status, bytes.TrimSpace(text))}
	}
	return text, err
}
