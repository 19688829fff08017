package gitload

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

func LimitCommand(env loadgen.Env) *cobra.Command {
	var (
		addr    string
		withTLS bool
	)
	cmd := &cobra.Command{
		Use:   "limit FILE",
		Short: "Serve one file with Go's own HTTP server: the limit of this machine",
		Long: `Answers every GET and POST, at any path, with FILE: net/http, Content-Length, and the kernel's sendfile. Its figures
are the best that a Go server can reach on this machine. For a fair comparison use a file of the length of the fetch's
response, such as an entry of Packhorse's pack cache. Load it with the same client, "packhorse-bench fetch --raw". With
--tls it uses TLS 1.3 with a certificate for this run.

It runs until it is interrupted.`,
		Example: `  packhorse-bench limit /tmp/pack.framed &
  packhorse-bench fetch --raw http://127.0.0.1:8081/ --clients 30 --server-pid PID
  packhorse-bench limit /tmp/pack.framed --tls --http 127.0.0.1:8443
  packhorse-bench fetch --raw https://127.0.0.1:8443/ --insecure`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&addr, "http", "127.0.0.1:8081", "address to listen on; port 0 chooses a free one")
	cmd.Flags().BoolVar(&withTLS, "tls", false, "TLS 1.3 with a self-signed certificate")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		info, err := os.Stat(args[0])
		if err == nil && !info.Mode().IsRegular() {
			err = fmt.Errorf("%s: not a regular file", args[0])
		}
		if err != nil {
			return err
		}
		return serve(cmd.Context(), env, addr, withTLS, fileHandler(args[0]),
			fmt.Sprintf("%s (%.3f MB)", args[0], float64(info.Size())/1e6))
	}
	return cmd
}

// serve serves until the context ends.
func serve(ctx context.Context, env loadgen.Env, addr string, withTLS bool, handler http.Handler, what string) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer l.Close()
	scheme := "http"
	if withTLS {
		config, err := selfSigned(l.Addr())
		if err != nil {
			return err
		}
		l, scheme = tls.NewListener(l, config), "https"
	}
	srv := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	defer context.AfterFunc(ctx, func() { srv.Close() })()
	fmt.Fprintf(env.Stdout, "%s://%s/ serves %s, pid %d\n", scheme, l.Addr(), what, os.Getpid())
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) || ctx.Err() == nil {
		return err
	}
	return nil
}

// fileHandler opens the file for each request: a shared descriptor would share its offset.
func fileHandler(file string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f, err := os.Open(file)
		if err != nil {
			http.Error(w, "the file is gone", http.StatusInternalServerError)
			return
		}
		defer f.Close()
		w.Header().Set("Content-Type", "application/x-git-upload-pack-result")
		http.ServeContent(w, r, "", time.Time{}, f)
	})
}

// WriteSelfSigned makes a certificate for the loopback and writes it and its key as PEM files.
func WriteSelfSigned(certFile, keyFile string) error {
	config, err := selfSigned(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return err
	}
	key, err := x509.MarshalPKCS8PrivateKey(config.Certificates[0].PrivateKey)
	if err != nil {
		return err
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: config.Certificates[0].Certificate[0]})
	return errors.Join(os.WriteFile(certFile, cert, 0o600),
		os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), 0o600))
}

// selfSigned returns TLS settings of a server with a certificate that exists only in memory.
func selfSigned(addr net.Addr) (*tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()),
		Subject:      pkix.Name{CommonName: "packhorse bench"},
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.Add(30 * 24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:     []string{"localhost"},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	if tcp, ok := addr.(*net.TCPAddr); ok && !tcp.IP.IsUnspecified() {
		template.IPAddresses = append(template.IPAddresses, tcp.IP)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		MinVersion:   tls.VersionTLS13,
		NextProtos:   []string{"http/1.1"},
	}, nil
}
