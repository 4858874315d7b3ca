// Package tlsconfig is the "tls" block of endpoints that go over a network: what
// to trust, and who we are.
package tlsconfig

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"software.sslmate.com/src/go-pkcs12"
)

// Config is the block as written in a spec. The zero value is "no TLS, unless the
// endpoint's address asks for it".
type Config struct {
	Required           bool   `yaml:"required" default:"false" doc:"speak TLS or not at all"`
	CAFile             string `yaml:"ca_file" doc:"PEM file of the authorities to trust, instead of the system's"`
	CertFile           string `yaml:"cert_file" doc:"our certificate: PEM, with the chain behind it, or PKCS#12 (.p12, .pfx), which holds the key too"`
	KeyFile            string `yaml:"key_file" doc:"PEM file of the certificate's key, not encrypted; it may stand in cert_file"`
	CertPassword       string `yaml:"cert_password" secret:"true" doc:"password of a PKCS#12 cert_file"`
	AcceptInvalidCerts bool   `yaml:"accept_invalid_certs" default:"false" doc:"do not check who answers. For tests: anybody on the way can read and change everything. Each run warns about it."`
}

// Given reports whether the block asks for TLS: nobody names an authority or a
// certificate for a connection in the clear.
func (c *Config) Given() bool {
	return c.Required || c.CAFile != "" || c.CertFile != "" || c.KeyFile != "" || c.AcceptInvalidCerts
}

// Validate reports every fault that can be seen without reading a file.
func (c *Config) Validate() []error {
	var errs []error
	switch {
	case c.KeyFile != "" && c.CertFile == "":
		errs = append(errs, errors.New("tls.cert_file: missing, key_file is there"))
	case c.KeyFile != "" && c.bundle():
		errs = append(errs, errors.New("tls.key_file: a PKCS#12 cert_file holds the key itself"))
	}
	if c.CertPassword != "" && !c.bundle() {
		errs = append(errs, errors.New("tls.cert_password: only a PKCS#12 cert_file (.p12, .pfx) has one"))
	}
	return errs
}

// bundle reports whether the certificate is a PKCS#12 file.
func (c *Config) bundle() bool {
	ext := strings.ToLower(filepath.Ext(c.CertFile))
	return ext == ".p12" || ext == ".pfx"
}

// Client reads the files and makes the settings of a client. The server's name is
// left to the caller, or to the dialer. Errors name the file and never what is
// in it (invariant 11).
func (c *Config) Client() (*tls.Config, error) {
	out := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: c.AcceptInvalidCerts}
	if c.CAFile != "" {
		text, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("tls.ca_file: %w", err)
		}
		out.RootCAs = x509.NewCertPool()
		if !out.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("tls.ca_file: %s holds no certificate in PEM", c.CAFile)
		}
	}
	if c.CertFile == "" {
		return out, nil
	}
	cert, err := c.certificate()
	if err != nil {
		return nil, err
	}
	out.Certificates = []tls.Certificate{cert}
	return out, nil
}

func (c *Config) certificate() (tls.Certificate, error) {
	cert, err := os.ReadFile(c.CertFile)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("tls.cert_file: %w", err)
	}
	if c.bundle() {
		key, leaf, chain, err := pkcs12.DecodeChain(cert, c.CertPassword)
		if err != nil {
			return tls.Certificate{}, fmt.Errorf("tls.cert_file: %s: %w", c.CertFile, err)
		}
		out := tls.Certificate{PrivateKey: key, Leaf: leaf, Certificate: [][]byte{leaf.Raw}}
		for _, next := range chain {
			out.Certificate = append(out.Certificate, next.Raw)
		}
		return out, nil
	}
	key, name := cert, c.CertFile
	if c.KeyFile != "" {
		name = c.KeyFile
		if key, err = os.ReadFile(c.KeyFile); err != nil {
			return tls.Certificate{}, fmt.Errorf("tls.key_file: %w", err)
		}
	}
	if encrypted(key) {
		return tls.Certificate{}, fmt.Errorf("tls: the key in %s is encrypted: put certificate and key into a PKCS#12 file (openssl pkcs12 -export) and name that as cert_file", name)
	}
	out, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("tls: certificate %s with key %s: %w", c.CertFile, name, err)
	}
	return out, nil
}

// encrypted reports whether a PEM file holds a key that needs a password.
func encrypted(text []byte) bool {
	for {
		block, rest := pem.Decode(text)
		if block == nil {
			return false
		}
		if block.Type == "ENCRYPTED PRIVATE KEY" || strings.Contains(block.Headers["Proc-Type"], "ENCRYPTED") {
			return true
		}
		text = rest
	}
}
