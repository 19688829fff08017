package gitload

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"

	nodeclient "github.com/packhorse-git/packhorse/client"

	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// RPCOptions say which node the small request goes to; address is empty if it goes by Git's protocol.
type RPCOptions struct {
	Address            string
	secretFile         string
	tlsCA              string
	certFile, certsKey string
	serverName         string
}

func (o *RPCOptions) Flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.Address, "rpc", "",
		"ask the node at HOST:PORT or unix:PATH instead, by its control API: RefService.Resolve")
	f.StringVar(&o.secretFile, "secret-file", "", "with --rpc: file with the node's secret")
	f.StringVar(&o.tlsCA, "tls-ca", "", "with --rpc: speak TLS, and trust the certificates (PEM) in this file")
	f.StringVar(&o.serverName, "server-name", "",
		"with --tls-ca: the name in the node's certificate (default: the host of its address)")
	f.StringVar(&o.certFile, "tls-cert", "", "with --rpc: the certificate (PEM) to show the node")
	f.StringVar(&o.certsKey, "tls-key", "", "with --rpc: the private key of --tls-cert (PEM)")
}

func (o *RPCOptions) Check() error {
	switch {
	case o.Address == "" && *o != (RPCOptions{}):
		return errors.New("--secret-file, --tls-ca, --server-name, --tls-cert and --tls-key go with --rpc only")
	case (o.certFile == "") != (o.certsKey == ""):
		return errors.New("--tls-cert and --tls-key go together")
	case (o.certFile != "" || o.serverName != "") && o.tlsCA == "":
		return errors.New("--tls-cert and --server-name go with --tls-ca: without it the node is not spoken to by TLS")
	}
	return nil
}

// options are those of the node's client.
func (o *RPCOptions) options() (options nodeclient.Options, err error) {
	if o.secretFile != "" {
		b, err := os.ReadFile(o.secretFile)
		if err != nil {
			return options, fmt.Errorf("--secret-file: %w", err)
		}
		secret := strings.TrimSpace(string(b))
		options.Secret = func() string { return secret }
	}
	if o.tlsCA != "" {
		b, err := os.ReadFile(o.tlsCA)
		if err != nil {
			return options, fmt.Errorf("--tls-ca: %w", err)
		}
		options.TLS = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool(), ServerName: o.serverName}
		if !options.TLS.RootCAs.AppendCertsFromPEM(b) {
			return options, fmt.Errorf("--tls-ca %s: no certificate in PEM in it", o.tlsCA)
		}
	}
	if o.certFile != "" {
		pair, err := tls.LoadX509KeyPair(o.certFile, o.certsKey)
		if err != nil {
			return options, fmt.Errorf("--tls-cert: %w", err)
		}
		options.TLS.Certificates = []tls.Certificate{pair}
	}
	return options, nil
}

// Client makes one of the node.
func (o *RPCOptions) Client() (*nodeclient.Client, error) {
	options, err := o.options()
	if err != nil {
		return nil, err
	}
	return nodeclient.New(o.Address, options)
}

// target is the node, as the generator of small requests has it. The address is one that the client takes.
func (o *RPCOptions) target() (*loadgen.Target, error) {
	options, err := o.options()
	if err != nil {
		return nil, err
	}
	address := o.Address
	socket, local := strings.CutPrefix(address, "unix:")
	if local {
		address = "localhost"
	}
	if !strings.Contains(address, "://") {
		scheme := "http://"
		if options.TLS != nil {
			scheme = "https://"
		}
		address = scheme + address
	}
	t, err := loadgen.ParseTarget(address, false)
	if err != nil {
		return nil, err
	}
	if local {
		t.Socket = socket
	}
	if c := options.TLS; c != nil {
		c.NextProtos = t.TLS.NextProtos
		if c.ServerName == "" {
			c.ServerName = t.TLS.ServerName
		}
		t.TLS = c
	}
	if options.Secret != nil && options.Secret() != "" {
		t.Auth = "Bearer " + options.Secret()
	}
	return t, nil
}

// prepareResolve asks for a ref by RefService.Resolve, and returns the load that repeats the call and compares every
// answer with the first.
func (o *RPCOptions) prepareResolve(ctx context.Context, t *loadgen.Target, ref string,
	timeout time.Duration) (*loadgen.Pings, error) {
	node, err := o.Client() // its errors say more than a status
	if err != nil {
		return nil, err
	}
	defer node.Close()
	repository, err := RepositoryOf(t)
	if err != nil {
		return nil, err
	}
	request := &packhorsev1.ResolveRequest{Repository: repository, Name: ref}
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	response, err := node.Refs().Resolve(limited, connect.NewRequest(request))
	if err != nil {
		return nil, fmt.Errorf("resolving %s at the node: %w", ref, err)
	}
	p, err := o.Pings(ctx, packhorsev1connect.RefServiceResolveProcedure, request, timeout)
	if err != nil {
		return nil, fmt.Errorf("resolving %s at the node: %w", ref, err)
	}
	if !bytes.Contains(p.Want, []byte(response.Msg.GetRef().GetOid())) {
		return nil, fmt.Errorf("resolving %s at the node: two answers differ: is it being pushed to?", ref)
	}
	return p, nil
}

// Pings calls a procedure of the node once, by the Connect protocol, and returns the load that repeats the call.
func (o *RPCOptions) Pings(ctx context.Context, procedure string, request proto.Message,
	timeout time.Duration) (*loadgen.Pings, error) {
	node, err := o.target()
	if err != nil {
		return nil, err
	}
	message, err := proto.Marshal(request)
	if err != nil {
		return nil, err
	}
	p := &loadgen.Pings{Target: node, Request: node.Call(procedure, message), Timeout: timeout}
	p.Want, err = p.First(ctx)
	return p, err
}

// RepositoryOf returns the path of the repository that a target's URL names.
func RepositoryOf(t *loadgen.Target) (string, error) {
	path, err := url.PathUnescape(t.Path)
	return strings.Trim(path, "/"), err
}
