#!/bin/sh
# Installs what tests/integration/test_report_browser.py drives: Chromium and its driver, on Debian and Ubuntu. Needs root.
# Elsewhere: install Chromium or Chrome and chromedriver of the same version, and have both on the PATH.
set -e
apt-get update
apt-get install -y --no-install-recommends chromium chromium-driver
