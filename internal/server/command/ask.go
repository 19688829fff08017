package command

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/packhorse-git/packhorse/internal/server/adminapi"
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

// ask sends a request without a body and returns the response. The network is "unix" with a path as the address, or
// "tcp" with HOST:PORT. The error is a *refusal if the response is not 200.
func ask(ctx context.Context, network, address, method, path string) ([]byte, error) {
	response, err := send(ctx, network, address, method, path)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil || response.StatusCode == http.StatusOK {
		return text, err
	}
	var problem adminapi.Error
	if json.Unmarshal(text, &problem) != nil || problem.Error == "" {
		problem.Error = fmt.Sprintf("%s: %.200s", response.Status, bytes.TrimSpace(text))
	}
	return nil, &refusal{response.StatusCode, problem.Error}
}

// send is ask for a response of any size.
func send(ctx context.Context, network, address, method, path string) (*http.Response, error) {
	host := address
	if network == "unix" {
		host = "localhost"
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://"+host+path, nil)
	if err != nil {
		return nil, err
	}
	return httpreuse.Client(&http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		}}).Do(request)
}
