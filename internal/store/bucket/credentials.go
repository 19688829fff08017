package bucket

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

// newProvider returns the first source of credentials that is configured; see Options.
func newProvider(file, profile string) *provider {
	p := &provider{Provider: &credentials.IAM{}, remedy: "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a " +
		"credentials file, or give the machine a role"}
	shared := sharedFile()
	_, sharedErr := os.Stat(shared)
	switch {
	case file != "":
	case os.Getenv("AWS_ACCESS_KEY_ID") != "":
		p.Provider = &credentials.EnvAWS{}
		return p
	case os.Getenv("AWS_WEB_IDENTITY_TOKEN_FILE") != "", os.Getenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") != "",
		os.Getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI") != "":
		return p
	case sharedErr == nil:
		file = shared
	default:
		return p
	}
	p.file, p.profile = file, cmp.Or(profile, os.Getenv("AWS_PROFILE"), "default")
	p.remedy = fmt.Sprintf("the file needs aws_access_key_id and aws_secret_access_key in section [%s]", p.profile)
	return p
}

// sharedFile is the place of the shared credentials file of AWS.
func sharedFile() string {
	if name := os.Getenv("AWS_SHARED_CREDENTIALS_FILE"); name != "" {
		return name
	}
	home, _ := os.UserHomeDir()
	return filepath.Join(home, ".aws", "credentials")
}

// provider is a source of credentials that reads a file again when it changes, and adds a remedy to errors. minio-go
// calls its methods under a lock. The file is parsed here: minio-go's own provider reads it for each request, and its
// parser makes the program larger.
type provider struct {
	credentials.Provider // without a file
	remedy               string
	hasValue             bool // the credentials were read, and the file was not changed since
	expires              bool // they have an end

	file, profile string    // empty: no file
	modified      time.Time // of the file when it was read
	size          int64     // the same
	checked       time.Time // when the file was compared last
}

// fileCheck is the time between checks of a credentials file.
const fileCheck = 5 * time.Second

// IsExpired reports whether the credentials have to be read again.
func (p *provider) IsExpired() bool {
	if !p.hasValue || p.expires && p.Provider.IsExpired() {
		return true
	}
	if p.file == "" || time.Since(p.checked) < fileCheck {
		return false
	}
	p.checked = time.Now()
	info, err := os.Stat(p.file)
	if err == nil && (!info.ModTime().Equal(p.modified) || info.Size() != p.size) {
		p.hasValue = false // until they are read: minio-go asks more than once
	}
	return !p.hasValue // while the file is missing, the old credentials stay
}

// RetrieveWithCredContext reads the credentials.
func (p *provider) RetrieveWithCredContext(c *credentials.CredContext) (value credentials.Value, err error) {
	if p.file != "" {
		value, err = p.readFile()
	} else {
		value, err = p.Provider.RetrieveWithCredContext(c)
	}
	if err == nil && (value.AccessKeyID == "" || value.SecretAccessKey == "") {
		err = errors.New("an access key is empty")
	}
	p.hasValue, p.expires = err == nil, !value.Expiration.IsZero()
	if err != nil {
		return value, credentialsError{err, p.remedy}
	}
	return value, nil
}

// readFile reads a section of a shared credentials file of AWS. Other settings than keys are ignored.
func (p *provider) readFile() (credentials.Value, error) {
	value := credentials.Value{SignerType: credentials.SignatureV4}
	if info, err := os.Stat(p.file); err == nil {
		p.modified, p.size, p.checked = info.ModTime(), info.Size(), time.Now()
	}
	text, err := os.ReadFile(p.file)
	if err != nil {
		return value, err
	}
	section := ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "["); ok {
			section = strings.TrimSpace(strings.TrimSuffix(name, "]"))
			continue
		}
		key, setting, _ := strings.Cut(line, "=")
		if section != p.profile {
			continue
		}
		switch setting = strings.TrimSpace(setting); strings.TrimSpace(key) {
		case "aws_access_key_id":
			value.AccessKeyID = setting
		case "aws_secret_access_key":
			value.SecretAccessKey = setting
		case "aws_session_token":
			value.SessionToken = setting
		}
	}
	return value, nil
}

// credentialsError means that there are no credentials.
type credentialsError struct {
	err    error
	remedy string
}

func (e credentialsError) Error() string { return "no credentials: " + e.err.Error() }
func (e credentialsError) Unwrap() error { return e.err }
